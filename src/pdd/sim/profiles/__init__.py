"""What chips can do, and what models ask of them: one TOML file each, every figure with its source."""
