"""KubeVirt and CDI stood in for: their APIs, webhooks and controllers, on a real kube-apiserver, in one process.

It answers, takes as long and fails as oddly as KubeVirt v1.9 (or, told so, v1.0 to v1.8) and CDI v1.66 do, because the
driver is tested against it. What the guest sees is the business of a `Machines` (``e2e.lab.machines``). All state is in
the API objects, the storage directory and the machines, so the process can be killed and started again at any time.

Run as ``python -m e2e.lab.kubevirt --config FILE.json``; the file is described in ``settings``. Not yet modelled:
clones, snapshots and claim adoption.
"""
