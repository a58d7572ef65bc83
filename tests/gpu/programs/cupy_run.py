import cupy
from hold import hold, result

a = cupy.arange(1 << 24, dtype=cupy.float32)
b = cupy.matmul(a.reshape(4096, 4096), cupy.ones((4096, 256), cupy.float32))
host = cupy.cuda.alloc_pinned_memory(1 << 20)
cupy.cuda.Stream.null.synchronize()
result(total=int(a[:1000].sum()), shape=b.shape[1])
hold(pool=cupy.get_default_memory_pool().total_bytes())
