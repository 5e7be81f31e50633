"""Shows what runs did: tables in the terminal, self-contained HTML with plots. Loads no torch."""
