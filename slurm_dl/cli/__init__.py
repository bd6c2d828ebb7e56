"""The commands: what people and systemd start."""
