"""What `scripts/bench` is made of.

`scenarios` says what is measured and `metrics` what comes out of it, with the goals; `contestants` lists who is
measured, one file each. `rounds` runs one scenario of one contestant in processes of its own (`one_round`). To add a
peer, write a `contestant.Contestant` and a line in `contestants`.

The other modules are of four kinds:

- Scenarios of `scripts/bench`: `latency`, `throughput`, `concurrent_clients`, `launching`, `importing`, `memory`,
  `buffers`, `recovery`, `failover`, `aftermath`, `signals`, `embedding`, `serving`, `serving_turns` and `streams`.
- Contestants: `base`, `runtime`, and `peers/`. `report` puts the numbers into tables, `sizes` says how much a round
  measures, and `machine` has what figures mean little without.
- Programs and actors that the scenarios run. Their names end with `_actor`, `_worker`, `_process`, `_client` or
  `_server`; `application`, `scraper` and `signalled` are such programs too.
- Measurements by themselves, each with its command in its first lines: `loaded_failover` and its floor
  `bare_failover`, `first_calls`, `remote_clients`, `programs` with `chained` and `programs_cuda`. For a GPU: `gpu`,
  `gpu_embedding`, `gpu_failover`, `gpu_products` and `gpu_sparse`. `in_flight` is what they share.
"""
