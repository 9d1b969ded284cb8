"""Our attention inside other people's engines: a module a host, which imports that host; none is imported by itself."""
