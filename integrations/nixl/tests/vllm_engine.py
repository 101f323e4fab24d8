"""Engines of vLLM, unmodified, in processes of their own, and a model that is made here."""

import contextlib
import multiprocessing
import os
import signal
import time

BLOCK = 32
PATIENCE = 900.0  # seconds after which an engine hangs; two that start on two busy CPUs take minutes


def make_model(folder):
    """A Llama of 0.4 million random weights, large enough that its attention decides what comes next."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(vocab_size=512, hidden_size=128, intermediate_size=256, num_hidden_layers=3, num_attention_heads=4,
                         num_key_value_heads=2, max_position_embeddings=1024, initializer_range=0.2, bos_token_id=None,
                         eos_token_id=None)
    LlamaForCausalLM(config).save_pretrained(folder)


def _engine(pipe, model, environment, transfer):
    os.environ.update(environment)
    from vllm import LLM, SamplingParams
    from vllm.config import KVTransferConfig

    with_transfer = {"kv_transfer_config": KVTransferConfig(**transfer)} if transfer else {}
    engine = LLM(model=model, skip_tokenizer_init=True, dtype="float32", enforce_eager=True, block_size=BLOCK,
                 max_model_len=512, max_num_seqs=4, enable_prefix_caching=False, **with_transfer)
    pipe.send("ready")
    for prompt, count, where in iter(pipe.recv, None):
        more = {"extra_args": {"kv_transfer_params": where}} if where else {}
        sampling = SamplingParams(temperature=0.0, max_tokens=count, ignore_eos=True, detokenize=False, **more)
        try:
            [answer] = engine.generate([{"prompt_token_ids": prompt}], sampling, use_tqdm=False)
            pipe.send((list(answer.outputs[0].token_ids), answer.outputs[0].finish_reason, answer.kv_transfer_params))
        except Exception as failure:
            pipe.send(([], f"{type(failure).__name__}: {failure}", None))


class Engine:
    """One engine; `fabric`: it shares its KV with others over NIXL's WEFT backend."""

    def __init__(self, model, fabric=None, port=0, on_failure="fail"):
        environment = {
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1", "VLLM_LOGGING_LEVEL": "WARNING",
            "VLLM_LOGGING_STREAM": "ext://sys.stderr", "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port),
        }
        transfer = None
        if fabric:
            environment |= {"WEFT_NIXL_FABRIC": fabric} | ({"WEFT_NIXL_RAILS": "lo"} if fabric == "tcp" else {})
            transfer = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_load_failure_policy": on_failure,
                        "kv_connector_extra_config": {"backends": ["WEFT"], "kv_lease_duration": 600}}
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_engine, args=(theirs, model, environment, transfer))
        self.process.start()
        theirs.close()

    def answer(self, patience=PATIENCE):
        if not self.pipe.poll(patience):
            raise TimeoutError("an engine hangs")
        return self.pipe.recv()

    def send(self, prompt, count=1, where=None):
        self.pipe.send((prompt, count, where))

    def ask(self, *what):
        """The tokens, why there are no more, and where the KV of the prompt is."""
        self.send(*what)
        return self.answer()

    def signal(self, number):
        os.kill(self.process.pid, number)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with contextlib.suppress(OSError):
            self.pipe.send(None)
        self.process.join(20)
        if self.process.is_alive():
            self.signal(signal.SIGKILL)
        self.process.join()


def seconds_of(call, *arguments):
    began = time.monotonic()
    return call(*arguments), time.monotonic() - began
