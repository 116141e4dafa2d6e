"""What is said and how it travels: messages, codec, logs, bus. Knows no sibling, no torch, no SQLAlchemy."""
