"""nccl_run.py: an all-reduce over two GPUs, one process per GPU; rank 0 prints the result."""
import os
import sys

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def rank_main(rank, gate):
    os.environ.update(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="29511")
    torch.cuda.set_device(rank)
    dist.init_process_group("nccl", rank=rank, world_size=2)
    x = torch.full((1 << 26,), float(rank + 1), device="cuda")
    for _ in range(5):
        y = x.clone()
        dist.all_reduce(y)
    torch.cuda.synchronize()
    if rank == 0:
        print(f"RESULT sum={y[0].item():.1f}", flush=True)
    print(f"PID {rank} {os.getpid()}", flush=True)
    dist.barrier()
    gate.wait()
    dist.destroy_process_group()


if __name__ == "__main__":
    mp.set_start_method("spawn")
    gate = mp.Event()
    ranks = [mp.Process(target=rank_main, args=(r, gate)) for r in range(2)]
    for p in ranks:
        p.start()
    import time

    time.sleep(20)
    print("HOLD", flush=True)
    sys.stdin.readline()
    gate.set()
    for p in ranks:
        p.join()
    sys.exit(max(p.exitcode for p in ranks))
