#!/bin/bash
# Install the real programs that some tests need, where we may; otherwise say what is missing and go on.
set -u
want=""
command -v gcc > /dev/null || want="$want gcc libc6-dev"
command -v openssl > /dev/null || want="$want openssl"
command -v promtool > /dev/null || want="$want prometheus"
command -v prometheus-alertmanager > /dev/null || want="$want prometheus-alertmanager"
{ command -v slurmctld && command -v slurmd && command -v munged; } > /dev/null || want="$want slurmctld slurmd slurm-client munge"
command -v mkfs.ext4 > /dev/null || want="$want e2fsprogs"
command -v systemd-analyze > /dev/null || want="$want systemd"
command -v chromium > /dev/null || want="$want chromium fonts-dejavu-core"
[ -n "$want" ] || exit 0
if [ "$(id -u)" = 0 ] && command -v apt-get > /dev/null && [ -z "${GPUWATCH_NO_INSTALL:-}" ]; then
  echo "installing for the tests:$want"
  export DEBIAN_FRONTEND=noninteractive
  apt-get update -qq && apt-get install -y -qq --no-install-recommends $want > /dev/null && exit 0
  echo "that failed; the tests that need them will say so"
else
  echo "not installed, their tests will be skipped:$want (as root: apt-get install$want)"
fi
exit 0
