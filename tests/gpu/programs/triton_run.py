import torch
import triton
import triton.language as tl
from hold import hold, result


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(x + at, mask=at < n) + tl.load(y + at, mask=at < n), mask=at < n)


n = 1 << 22
x, y = torch.ones(n, device="cuda"), torch.ones(n, device="cuda")
out = torch.empty_like(x)
add[(n // 1024,)](x, y, out, n, BLOCK=1024)
torch.cuda.synchronize()
result(total=float(out.sum()))
hold()
