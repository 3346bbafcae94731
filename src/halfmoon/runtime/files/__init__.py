"""The directory of a store on a real file system: its files, their mapping, and who may read them."""
