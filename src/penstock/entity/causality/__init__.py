"""What caused what: walks over causes, effects and correlations, and their picture."""
