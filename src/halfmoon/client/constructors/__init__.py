"""Arguments of the constructors of clients: typed settings by keyword, and the refusal of anything else."""
