"""Stands in for paged engines on CPU tensors: the same interface, over put and get.

Gone when the store itself attaches tensors.
"""

from dataclasses import dataclass

import numpy as np

import kvtier
from kvtier.namespace import Namespace


@dataclass(frozen=True, kw_only=True)
class PagedGeometry:
    fragments: list


class PagedJob:
    def __init__(self, job, finish):
        self._job, self._finish, self._result = job, finish, None

    def done(self):
        return self._job.done()

    def wait(self, timeout_s=None):
        self._job.wait(timeout_s)
        return self.result

    @property
    def result(self):
        if self._result is None:
            self._result = self._job.result
            self._finish(self._result)
        return self._result

    def cancel(self, *, wait=False, timeout_s=None):
        return self._job.cancel(wait=wait, timeout_s=timeout_s)


class Paged:
    def __init__(self, namespace, tensors, geometry):
        self._namespace = namespace
        self._views = []
        for tensor_index, offset_bytes, stride_bytes, fragment_bytes in geometry.fragments:
            tensor = tensors[tensor_index]
            assert tensor.stride(0) == stride_bytes
            assert offset_bytes == 0
            self._views.append(tensor[:, :fragment_bytes].numpy().view(np.uint8))

    def save(self, keys, block_ids, *, stream=None, parent=None):
        data = np.concatenate([view[block_ids] for view in self._views], axis=1)
        return PagedJob(self._namespace.put_async(keys, data, parent=parent), lambda result: None)

    def load(self, keys, block_ids, *, stream=None):
        out = np.empty((len(keys), self._namespace.block_bytes), dtype=np.uint8)

        def scatter(result):
            at = 0
            for view in self._views:
                end = at + view.shape[1]
                view[block_ids[result.mask]] = out[result.mask, at:end]
                at = end

        return PagedJob(self._namespace.get_async(keys, out), scatter)


def install():
    """Gives namespaces attach() where they have none."""
    if not hasattr(Namespace, "attach"):
        Namespace.attach = Paged
        Namespace.attach = lambda self, tensors, geometry: Paged(self, tensors, geometry)
        kvtier.PagedGeometry = PagedGeometry
