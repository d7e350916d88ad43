"""The networks: generators, discriminators and their noise."""
