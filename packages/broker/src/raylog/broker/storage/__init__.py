"""The segmented log in Kafka's file formats. It knows batches and ids, and nothing of replicas or requests.

From below: ``disk`` (files) and ``state`` (values), ``segments``, ``log``, ``directories``; a room calls those below
it. Called by ``partition``, and for log directories by ``parts`` and the commands. Begin with ``log.log``.
"""
