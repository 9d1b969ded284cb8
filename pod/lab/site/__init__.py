"""The site that `make site` builds: chapters, gallery, claims, glossary, the public call and three explorers, as files
that need no server, no kernel and no network."""
