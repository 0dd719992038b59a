"""The commands, in folders by what they are about."""
