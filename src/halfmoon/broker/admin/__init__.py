"""What tools ask of a broker and change in it: topics, groups, settings, files, figures."""
