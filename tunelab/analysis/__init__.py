"""What a sweep's journal tells people: pure functions from its state or events to rows and text, without Ray or a terminal."""
