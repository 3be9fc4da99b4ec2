"""What is placed on what: graphs, topologies and the costs of one on the other."""
