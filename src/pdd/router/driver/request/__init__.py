"""One request from open to end: its loop, its engines' streams, its choices, its answer."""
