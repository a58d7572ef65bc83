"""``usage()`` to the logger of a training framework.

Hugging Face: ``Trainer(..., callbacks=[vramtrace.callbacks.trainer_callback()])``
Lightning:    ``Trainer(..., callbacks=[vramtrace.callbacks.lightning_callback()])``

The figures go the way of the loss: to TensorBoard, Weights & Biases or whatever else is set up there.
"""

import sys

from . import usage


def metrics(prefix="vram/"):
    """What is logged; nothing without the recorder."""
    now = usage(sites=0)
    return {} if now is None else now.metrics(prefix)


def trainer_callback(prefix="vram/"):
    """A ``TrainerCallback`` that adds the figures to each of the trainer's logs."""
    try:
        from transformers import TrainerCallback
    except ImportError:
        raise ImportError("trainer_callback needs transformers: pip install transformers") from None

    class VramCallback(TrainerCallback):
        def on_init_end(self, args, state, control, **named):
            _go_first(self, sys._getframe(1))

        # Where it was added after that.
        on_train_begin = on_init_end

        def on_log(self, args, state, control, logs=None, **named):
            if logs is not None:
                logs.update(metrics(prefix))

    return VramCallback()


def _go_first(callback, caller):
    """Puts the callback in front of the loggers. Each callback sees in the logs what the ones before it have put
    there, and a trainer adds a user's after its loggers. The list is that of the object that calls; where it has
    another form, the figures are in the trainer's own output alone."""
    callbacks = getattr(caller.f_locals.get("self"), "callbacks", None)
    if isinstance(callbacks, list) and callback in callbacks:
        # It is being walked: those behind keep their places.
        callbacks.remove(callback)
        callbacks.insert(0, callback)


def lightning_callback(prefix="vram/"):
    """A ``Callback`` that logs the figures at each step at which Lightning logs."""
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
