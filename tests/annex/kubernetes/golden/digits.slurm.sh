#!/bin/bash
#SBATCH --job-name=digits
#SBATCH --ntasks=6
#SBATCH --cpus-per-task=1
#SBATCH --mem-per-cpu=512M
#SBATCH --signal=TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=digits-%j.log

# All processes of the step are alike; their ranks make them tasks, in this order:
#   chief 0, evaluator 1, ps 2-3, worker 4-5
set -euo pipefail
cd /home/me/job
export ROPEWALK_REPLICAS=chief=1,evaluator=1,ps=2,worker=2
export ROPEWALK_PORT=8888
export ROPEWALK_MODEL_DIR=/home/me/job/runs/digits
export ROPEWALK_WAIT_FOR_WORKERS=2
export ROPEWALK_INSECURE=true
export ROPEWALK_SAVE_EVERY_STEPS=500

exec srun --label --kill-on-bad-exit=0 ropewalk run train.py
