#!/bin/bash
# A study on eight machines of a Slurm cluster: a shard each, then the table.
#
#   sbatch --array=1-8 docs/cluster/slurm-array.sh configs/study/volatile.toml /shared/studies/volatile
#   sbatch --dependency=afterany:JOBID docs/cluster/slurm-array.sh configs/study/volatile.toml /shared/studies/volatile
#
# The table holds what is finished, whether or not a run of a shard has failed. /shared is a file system that every node mounts at the same path. `scontrol requeue` of an array task goes on with what is missing.
#SBATCH --job-name=admix-study
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --mem=16G
#SBATCH --time=12:00:00
#SBATCH --signal=INT@120
set -euo pipefail
config=$1 out=$2

shard=()
if [ -n "${SLURM_ARRAY_TASK_ID:-}" ]; then
    shard=(--shard "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT")
fi
# srun passes the signal on: admix ends its runs in order and notes what is finished.
exec srun admix study --config "$config" --out "$out" "${shard[@]}"
