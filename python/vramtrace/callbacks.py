"""Logs the figures of ``usage()`` through a training framework.

Hugging Face: ``Trainer(..., callbacks=[vramtrace.callbacks.trainer_callback()])``
Lightning:    ``Trainer(..., callbacks=[vramtrace.callbacks.lightning_callback()])``

The figures go where the loss goes: to TensorBoard, Weights & Biases, or any other configured logger.
"""

import sys

from . import usage


def metrics(prefix="vram/"):
    """The figures to log; empty without the recorder."""
    now = usage(sites=0)
    return {} if now is None else now.metrics(prefix)


def trainer_callback(prefix="vram/"):
    """A ``TrainerCallback`` that adds the figures to each log entry of the trainer."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise ImportError("trainer_callback needs transformers: pip install transformers") from None

    class VramCallback(TrainerCallback):
        def on_init_end(self, args, state, control, **named):
            _go_first(self, sys._getframe(1))

        # A callback that is added after the trainer's construction gets no on_init_end.
        on_train_begin = on_init_end

        def on_log(self, args, state, control, logs=None, **named):
            if logs is not None:
                logs.update(metrics(prefix))

    return VramCallback()


def _go_first(callback, caller):
    """Moves the callback to the front of the trainer's list of callbacks.

    Callbacks run in order and share one dict of logs, and a trainer puts its loggers before a user's
    callbacks. The list is found in the calling object (``CallbackHandler``). If it is not there, only the
    trainer's own output has the figures."""
    callbacks = getattr(caller.f_locals.get("self"), "callbacks", None)
    if isinstance(callbacks, list) and callback in callbacks:
        # The caller iterates over this list: the callbacks after this one keep their positions.
        callbacks.remove(callback)
        callbacks.insert(0, callback)


def lightning_callback(prefix="vram/"):
    """A ``Callback`` that logs the figures at each step that Lightning logs."""
    try:
        from lightning.pytorch import Callback
    except ImportError:
        try:
            from pytorch_lightning import Callback
        except ImportError:
            raise ImportError("lightning_callback needs lightning: pip install lightning") from None

    class VramCallback(Callback):
        def on_train_batch_end(self, trainer, module, outputs, batch, batch_idx):
            if trainer.global_step % max(1, trainer.log_every_n_steps) == 0:
                for logger in trainer.loggers:
                    logger.log_metrics(metrics(prefix), step=trainer.global_step)

    return VramCallback()
