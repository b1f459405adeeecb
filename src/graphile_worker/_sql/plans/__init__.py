"""Plans: several queries in a row, as generators without I/O."""
