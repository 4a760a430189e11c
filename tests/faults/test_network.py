"""What network cards say in the kernel log. Forms: drivers/net/ethernet/mellanox/mlx5/core/{health,cmd,events}.c,
drivers/infiniband/hw/efa/efa_com.c, net/sched/sch_generic.c of the Linux kernel; lines of leptonai/gpud and
NVIDIA/NVSentinel tests."""

from __future__ import annotations

import pytest

from tests.faults_table import check

DEAD = "severity=fatal; action=drain_replace; drain=yes"

LINES = [
    (  # as a test of a public monitor writes it
        "event=nic_tx_timeout; dev=eth0; severity=warn; drain=after_count",
        "NETDEV WATCHDOG: eth0 (mlx5_core): transmit queue timed out",
    ),
    (
        f"event=nic_fw_dead; pci=0000:d2:00.0; {DEAD}",
        "mlx5_core 0000:d2:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    ),
    (
        f"event=nic_fw_dead; pci=0000:d2:00.0; {DEAD}",
        "mlx5_core 0000:d2:00.0: poll_health:1001:(pid 0): FW is unable to respond to initialization segment reads",
    ),
    (
        f"event=nic_cmd_timeout; pci=0000:03:00.0; command=ENABLE_HCA; {DEAD}",
        "mlx5_core 0000:03:00.0: wait_func:1195:(pid 1967079): ENABLE_HCA(0x104) timeout. Will cause a leak of a "
        "command resource",
    ),
    (
        f"event=nic_cmd_timeout; pci=0000:03:00.0; command=QUERY_VPORT_STATE; {DEAD}",
        "[ 12.5] mlx5_core 0000:03:00.0: wait_func_handle_exec_timeout:1133:(pid 9): cmd[0]: QUERY_VPORT_STATE(0x750) "
        "No done completion\n"
        "[ 12.6] mlx5_core 0000:03:00.0: wait_func:1161:(pid 9): QUERY_VPORT_STATE(0x750) timeout. Will cause a leak "
        "of a command resource",
    ),
    (  # the driver had no slot left for it
        f"event=nic_cmd_timeout; pci=0000:06:00.0; command=CREATE_UCTX; {DEAD}",
        "mlx5_core 0000:06:00.0: wait_func_handle_exec_timeout:1128:(pid 185911): cmd[-22]: CREATE_UCTX(0xa04) "
        "No done completion",
    ),
    (
        f"event=nic_hw_error; pci=-; {DEAD}",
        "mlx5_core: INFO: synd 0x8: unrecoverable hardware error.",
    ),
    (
        f"event=nic_hw_error; pci=0000:17:00.1; {DEAD}",
        "mlx5_core 0000:17:00.1: print_health_info:423:(pid 0): synd 0x8: unrecoverable hardware error",
    ),
    (
        f"event=nic_hw_error; pci=0000:17:00.0; {DEAD}",
        "kernel: mlx5_core 0000:17:00.0: poll_health:785:(pid 0): Fatal error 3 detected",
    ),
    (
        f"event=nic_hw_error; pci=0000:17:00.0; {DEAD}",
        "mlx5_core 0000:17:00.0: Health issue observed, firmware internal error, severity(3) ERROR:",
    ),
    (
        "event=nic_hot; pci=0000:17:00.0; severity=warn; action=contact_support; drain=after_count",
        "mlx5_core 0000:17:00.0: Health issue observed, High temperature, severity(4) WARNING:",
    ),
    (
        "event=nic_health; pci=0000:17:00.0; severity=warn; action=none; drain=after_count",
        "mlx5_core 0000:17:00.0: Health issue observed, internal eq error, severity(5) NOTICE:",
    ),
    (
        "event=nic_recovered; pci=0000:17:00.0; severity=info; action=none; drain=no",
        "mlx5_core 0000:17:00.0: mlx5_health_try_recover:380:(pid 71): health recovery succeeded",
    ),
    (
        f"event=nic_fw_dead; pci=0000:17:00.0; {DEAD}",
        "mlx5_core 0000:17:00.0: mlx5_health_try_recover:330:(pid 71): health recovery flow aborted, PCI reads still "
        "not working",
    ),
    (
        f"event=nic_fw_dead; pci=0000:17:00.0; {DEAD}",
        "mlx5_core 0000:17:00.0: mlx5_function_setup:1046:(pid 1): Firmware over 120000 MS in pre-initializing state, "
        "aborting",
    ),
    (
        "event=nic_hot; pci=0000:17:00.0; severity=warn; action=contact_support; drain=after_count",
        "mlx5_core 0000:17:00.0: temp_warn:164:(pid 0): High temperature on sensors with bit set 0 1",
    ),
    (
        "event=nic_hot; pci=0000:5c:00.0; severity=warn; action=contact_support; drain=after_count",
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
    ),
    (
        "event=nic_hot; pci=-; severity=warn; action=contact_support; drain=after_count",
        "mlx5_port_module_event:1131:(pid 0): Port module event[error]: module 0, Cable error, High Temperature",
    ),
    (
        "event=nic_module_error; pci=0000:5c:00.0; module=1; severity=degraded; action=contact_support; "
        "drain=after_count",
        "mlx5_core 0000:5c:00.0: Port module event[error]: module 1, Cable error, Bad or shorted cable/module",
    ),
    (
        "event=nic_unplugged; pci=0000:41:00.1; module=1; severity=warn; action=none; drain=no",
        "mlx5_core 0000:41:00.1: Port module event: module 1, Cable unplugged",
    ),
    ("", "mlx5_core 0000:41:00.1: Port module event: module 1, Cable plugged"),
    (
        "event=nic_power; pci=0000:12:00.0; watts=27; severity=warn; action=none; drain=no",
        "mlx5_core 0000:12:00.0: mlx5_pcie_event:299: Detected insufficient power on the PCIe slot (27W).",
    ),
    ("", "mlx5_core 0000:12:00.0: mlx5_pcie_event:304:(pid 5): PCIe slot power capability was not advertised."),
    (
        "event=nic_access_reg; pci=-; severity=info; action=none; drain=no",
        "mlx5_cmd_out_err:838:(pid 1441871): ACCESS_REG(0x805) op_mod(0x1) failed, status bad resource(0x5), "
        "syndrome (0x305684), err(-22)",
    ),
    (
        "event=nic_access_reg; pci=0000:d2:00.0; severity=info; action=none; drain=no",
        "Nov  3 10:11:12 host1 kernel: [99.1] mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 268269): "
        "ACCESS_REG(0x805) op_mod(0x1) failed",
    ),
    (
        "event=nic_cmd_failed; pci=0000:d2:00.0; command=CREATE_MKEY; severity=warn; action=none; drain=no",
        "mlx5_core 0000:d2:00.0: mlx5_cmd_out_err:838:(pid 26): CREATE_MKEY(0x200) op_mod(0x0) failed, status bad "
        "parameter(0x3), syndrome (0x4a8c4b), err(-22)",
    ),
    ("event=ib_link_up; dev=mlx5_0; port=1; drain=no", "mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link ACTIVE"),
    (
        "event=ib_link_down; dev=mlx5_0; port=1; severity=degraded; action=none; drain=after_count",
        "mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link DOWN",
    ),
    ("", "mlx5_core 0000:ab:00.0 mlx5_0: Port: 1 Link INIT"),
    (
        "event=nic_link_down; dev=ens1np0; pci=0000:5e:00.0; severity=degraded; action=none; drain=after_count",
        "mlx5_core 0000:5e:00.0 ens1np0: Link down",
    ),
    ("event=nic_link_up; dev=ens1np0; severity=info; drain=no", "mlx5_core 0000:5e:00.0 ens1np0: Link up"),
    (
        "event=nic_tx_timeout; dev=ens1f0np0; queue=3; ms=5234; severity=warn; action=none; drain=after_count",
        "mlx5_core 0000:5e:00.0 ens1f0np0: NETDEV WATCHDOG: CPU: 12: transmit queue 3 timed out 5234 ms",
    ),
    (
        "event=nic_tx_timeout; dev=eth2; queue=14; severity=warn; action=none; drain=after_count",
        "NETDEV WATCHDOG: eth2 (mlx5_core): transmit queue 14 timed out 6120 ms",
    ),
    (
        "event=nic_tx_timeout; dev=eth0; drain=after_count",
        "mlx5_core 0000:04:00.0 eth0: TX timeout detected",
    ),
    ("", "NETDEV WATCHDOG: eno1 (i40e): transmit queue 3 timed out"),
    ("", "i40e 0000:a1:00.0 ens44f0np0: NETDEV WATCHDOG: CPU: 214: transmit queue 22 timed out 5376 ms"),
    ("", "i40e 0000:3d:00.0 eno1: NIC Link is Down"),
    ("", "virtio_net virtio0 eth0: NETDEV WATCHDOG: CPU: 1: transmit queue 0 timed out 5500 ms"),
    (
        f"event=efa_reset_failed; pci=0000:00:06.0; {DEAD}",
        "efa 0000:00:06.0: Device isn't ready, abort com init",
    ),
    (
        "event=efa_cmd_failed; dev=rdmap0s6; severity=warn; action=none; drain=no",
        "infiniband rdmap0s6: Failed to process command CREATE_QP (opcode 6) comp_status 1 err -22",
    ),
    ("", "infiniband mlx5_0: Wait for completion (polling) timeout"),
    ("", "ena 0000:00:05.0: Reset indication didn't turn on"),
    ("", "ena 0000:00:05.0 eth0: Device isn't ready, can't reset device"),
    (
        "event=nic_tx_timeout; dev=eth0; drain=after_count",
        "mlx5_core 0000:04:00.0 eth0: RX timeout on channel: 3, ICOSQ: 0x1, RQ: 0x2, CQ: 0x3",
    ),
    ("", "mlx5_core 0000:00:02.0: wait_func_handle_exec_timeout:1113:(pid 3122): cmd[0]: CREATE_CQ(0x400) recovered"),
    ("", "ena 0000:00:05.0 eth0: Keep alive watchdog timeout."),
    ("", "mlx5_core 0000:5e:00.0: firmware version: 20.31.1014"),
    ("", "mlx5_core 0000:5e:00.0: E-Switch: Total vports 10, per vport: max uc(128) max mc(2048)"),
    ("", "IPv6: ADDRCONF(NETDEV_CHANGE): ib0: link becomes ready"),
    (
        "event=efa_admin_timeout; dev=rdmap0s6; severity=fatal; action=reboot; drain=yes",
        "infiniband rdmap0s6: The device sent a completion but the driver didn't receive any MSI-X interrupt for admin "
        "cmd CREATE_QP(1) status 0 (id: 3, sq producer: 4, sq consumer: 3, cq consumer: 3)",
    ),
    (
        "event=efa_admin_timeout; pci=0000:00:06.0; severity=fatal; action=reboot; drain=yes",
        "efa 0000:00:06.0: Admin queue is closed",
    ),
    (
        "event=efa_admin_timeout; dev=efa_0; severity=fatal; action=reboot; drain=yes",
        "infiniband efa_0: Wait for completion (polling) timeout",
    ),
    (
        f"event=efa_reset_failed; pci=0000:00:06.0; {DEAD}",
        "efa 0000:00:06.0: Reset indication didn't turn off",
    ),
]


@pytest.mark.parametrize(("expected", "text"), LINES)
def test_a_network_line(expected: str, text: str) -> None:
    check(expected, text)
