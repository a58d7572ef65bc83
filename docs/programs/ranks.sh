# Two ranks, as a launcher starts them.
RANK=0 WORLD_SIZE=2 python3 train.py 4 &
RANK=1 WORLD_SIZE=2 python3 train.py 6
wait
