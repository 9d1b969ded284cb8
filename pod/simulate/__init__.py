"""Models: of a GPU, of what an iteration costs, and runs of the serving loop on a simulated clock."""
