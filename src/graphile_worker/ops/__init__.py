"""What a person sees of a queue and does to it; nothing here prints or knows of a terminal."""
