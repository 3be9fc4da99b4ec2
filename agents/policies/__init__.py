"""SEL and PLC: networks, sampling of episodes, losses, and the classes of TF-Agents."""
