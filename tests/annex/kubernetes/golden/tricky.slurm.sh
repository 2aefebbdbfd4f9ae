#!/bin/bash
#SBATCH --job-name=tricky
#SBATCH --ntasks=8
#SBATCH --nodes=2
#SBATCH --cpus-per-task=2
#SBATCH --mem-per-cpu=1536M
#SBATCH --gpus-per-task=2
#SBATCH --partition=gpu
#SBATCH --account=team
#SBATCH --time=1:00:00
#SBATCH --signal=TERM@60
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=tricky-%j.log
#SBATCH --qos=high

# All processes of the step are alike; their ranks make them tasks, in this order:
#   chief 0, ps 1-3, worker 4-7
set -euo pipefail
cd /home/me/job
module load python
export ROPEWALK_REPLICAS=chief=1,ps=3,worker=4
export ROPEWALK_PORT=9000
export ROPEWALK_MODEL_DIR=s3://bucket/tricky
export ROPEWALK_WAIT_FOR_WORKERS=3
export ROPEWALK_SAVE_EVERY_S=30.0
export A='$(ROPEWALK_ROLE) $B'
export FLAG=no

read -r -d '' TASK <<'END' || true
if [ "$SLURM_PROCID" -lt 1 ]; then exec env ROPEWALK_TLS_CERT=/home/me/job/credentials/chief/tls.crt ROPEWALK_TLS_KEY=/home/me/job/credentials/chief/tls.key ROPEWALK_TLS_CA=/home/me/job/credentials/chief/ca.crt ROPEWALK_TOKEN_FILE=/home/me/job/credentials/chief/token ROPEWALK_TOKEN_KEYS=/home/me/job/credentials/chief/token.pub ropewalk run -m pack.train -- '$HOME' '$(id)' 'a b' 'it'"'"'s' y 'END
END' 1e3
elif [ "$SLURM_PROCID" -lt 4 ]; then exec env ROPEWALK_TLS_CERT=/home/me/job/credentials/ps/tls.crt ROPEWALK_TLS_KEY=/home/me/job/credentials/ps/tls.key ROPEWALK_TLS_CA=/home/me/job/credentials/ps/ca.crt ROPEWALK_TOKEN_FILE=/home/me/job/credentials/ps/token ROPEWALK_TOKEN_KEYS=/home/me/job/credentials/ps/token.pub ropewalk run -m pack.train -- '$HOME' '$(id)' 'a b' 'it'"'"'s' y 'END
END' 1e3
elif [ "$SLURM_PROCID" -lt 8 ]; then exec env ONLY=worker ROPEWALK_TLS_CERT=/home/me/job/credentials/worker/tls.crt ROPEWALK_TLS_KEY=/home/me/job/credentials/worker/tls.key ROPEWALK_TLS_CA=/home/me/job/credentials/worker/ca.crt ROPEWALK_TOKEN_FILE=/home/me/job/credentials/worker/token ROPEWALK_TOKEN_KEYS=/home/me/job/credentials/worker/token.pub ropewalk run -m pack.train -- '$HOME' '$(id)' 'a b' 'it'"'"'s' y 'END
END' 1e3 --worker
fi
END
exec srun --label --kill-on-bad-exit=0 --distribution=block bash -c "$TASK"
