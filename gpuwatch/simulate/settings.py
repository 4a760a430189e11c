"""The settings files of a simulated cluster, as an operator would have written them."""

AGGREGATOR_TOML = """\
# Written by `gpuwatch demo`. Real settings of a real aggregator, with shorter times than a real cluster wants.
[server]
listen = "127.0.0.1:{port}"
secret_file = "{directory}/secret"
operator_token_file = "{directory}/operator-token"
state_dir = "{directory}/aggregator"
hold_file = "{directory}/HOLD"
tick_s = 0.5

[cluster]
name = "demo"

[pools.h100]
nodes = [{slots}]
gpus = 8
provider = "azure"
region = "eastus"
sku = "{sku}"

[pools.h100.policy]
mode = "replace"
max_nodes_out = 2
hold_off_s = 3.0
dead_after_s = 4.0
witness_fresh_s = 10.0
driver_grace_s = 2.0
join_deadline_s = 30.0
drain_deadline_s = 1.0
job_action = "requeue"
empty_deadline_s = 10.0
cool_down_s = 1.0
spreading_window_s = 3.0
spare_quota = 1

[rules.training_stalled]
min_s = 6.0
unlearned_s = 20.0
dead_rank_s = 10.0
checkpoint_s = 5.0
init_s = 20.0

[cloud]
kind = "local"
interval_s = 1.0

[cloud.local]
directory = "{directory}"
command = ["{python}", "-m", "gpuwatch.simulate.node", "--slot", "{{slot}}", "--machine", "{{machine}}", \
"--directory", "{{directory}}", "--cluster", "{directory}"]
target_count = {node_count}
secret_file = "{directory}/secret"
provider = "azure"
region = "eastus"
sku = "{sku}"
usd_per_hour = "{usd_per_hour}"

[scheduler]
kind = "local"
interval_s = 0.5

[scheduler.local]
directory = "{directory}/scheduler"
slots = [{slots}]
node_timeout_s = 5.0
"""

AGENT_TOML = """\
slot = "{slot}"
machine = "{machine}"
aggregator = ["http://127.0.0.1:@PORT@"]
token_file = "{directory}/token"
state_dir = "{directory}/agent"
interval_s = 1.0
metrics_listen = ""

[collectors.nvml]
interval_s = 1.0
deadline_s = 2.0
container = "no"
preload = "gpuwatch.simulate.nvml:install"
preload_argument = "{directory}/gpus.json"

[collectors.kernel_log]
source = "file"
path = "{directory}/kernel.log"

[collectors.host]
clock = false
network_mounts = false

[collectors.infiniband]
enabled = false

[collectors.pcie]
enabled = false

[collectors.services]
enabled = false

[collectors.training]
interval_s = 0.5
directories = ["{directory}/heartbeats"]
"""
