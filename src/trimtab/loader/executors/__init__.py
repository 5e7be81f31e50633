"""Where media is decoded: in processes of this machine, or on a Ray cluster, behind one protocol."""
