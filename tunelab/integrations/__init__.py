"""Optional helpers for other libraries' training loops. One file per library; each imports its library at the top."""
