"""The commands `embedrock bench` and `embedrock demo`, which the command line of Embedrock adds."""
