"""vllm_run.py DIR OPTIONS: a vLLM engine with random weights, and OPTIONS (JSON) for it; DIR is for the model's configuration.

Prints READY, then for each line on stdin: `batch SEED` DONE SECONDS and a digest of the tokens; `sleep`, `wake` DONE; an empty
line ends it.
"""
import hashlib
import json
import random
import sys
import time
from pathlib import Path

CONFIG = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 2048, "intermediate_size": 5632,
    "num_hidden_layers": 22, "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 64, "vocab_size": 32000,
    "max_position_embeddings": 2048, "rms_norm_eps": 1e-5, "torch_dtype": "bfloat16", "bos_token_id": 1, "eos_token_id": 2,
}
REQUESTS, TOKENS = 64, 128


def main():
    from vllm import LLM, SamplingParams

    folder = Path(sys.argv[1])
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(CONFIG))
    engine = LLM(
        model=str(folder), skip_tokenizer_init=True, load_format="dummy", max_model_len=1024, max_num_seqs=REQUESTS,
        enable_sleep_mode=True, **json.loads(sys.argv[2]),
    )
    how = SamplingParams(temperature=0.0, max_tokens=TOKENS, ignore_eos=True, detokenize=False)
    print("READY", flush=True)
    for line in iter(sys.stdin.readline, "\n"):
        what, *seed = line.split()
        began, digest = time.monotonic(), ""
        if what == "batch":
            dice = random.Random(int(seed[0]))
            prompts = [{"prompt_token_ids": [dice.randrange(3, 32000) for _ in range(32)]} for _ in range(REQUESTS)]
            found = engine.generate(prompts, how, use_tqdm=False)
            digest = hashlib.sha256(repr([one.outputs[0].token_ids for one in found]).encode()).hexdigest()[:12]
        elif what == "sleep":
            engine.sleep(level=1)
        else:
            engine.wake_up()
        print("DONE", time.monotonic() - began, digest, flush=True)


if __name__ == "__main__":
    main()
