"""``usage()`` to the logger of a training framework.

Hugging Face: ``Trainer(..., callbacks=[vramtrace.callbacks.trainer_callback()])``
Lightning:    ``Trainer(..., callbacks=[vramtrace.callbacks.lightning_callback()])``

The figures go the way of the loss: to TensorBoard, Weights & Biases or whatever else is set up there.
"""

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
        def on_log(self, args, state, control, logs=None, **named):
            # Callbacks that were added later, and the loggers among them, see them too.
            if logs is not None:
                logs.update(metrics(prefix))

    return VramCallback()


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
