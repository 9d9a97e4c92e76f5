"""Bad input, by category: one sentence that names the key, exit code 2, no traceback, and nothing left on disk."""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fedexp import cli

QUICK = (
    "rounds=1",
    "local.epochs=1",
    "cohort.clients=6",
    "evaluate.all_clients=false",
    "loop=fabric",
    "executor=serial",
)
HUGE = str(10**30)

# ---------------------------------------------------------------- values, by key, after the group that it needs
COUNT = ("0", "-1", "1.5", HUGE, "nan", "many", "null", "[1]", "true", "2000000000")
COUNT_OR_NULL = ("0", "-1", "1.5", HUGE, "nan", "many", "[1]")
POSITIVE = ("0", "-1", "nan", "inf", "x", "null")
SHARE = ("-0.1", "1.1", "nan", "-inf", "half", "null")
FLAG = ("yes!", "1", "null")
VALUES = {
    "rounds": COUNT,
    "cohort.clients": COUNT,
    "cohort.fraction": ("0", "-1", "1.01", "nan", "inf", "all", "null"),
    "local.epochs": (*POSITIVE, "1e300"),
    "local.batch_size": COUNT,
    "local.clip": ("0", "-1", "nan", "inf", "x"),
    "mishaps.dropout": SHARE,
    "mishaps.stragglers": SHARE[:3],
    "mishaps.slow": SHARE[:3],
    "limit": ("0", "-1", "nan", "inf", "1e300", "long"),
    "every.evaluate": COUNT[:4],
    "every.checkpoint": COUNT[:4],
    "evaluate.window": COUNT_OR_NULL[:4],
    "evaluate": ("maps", "3", "null"),
    "evaluate.protocol": ("map",),
    "seed": ("x", "1.5", HUGE, "null", "[1]"),
    "faults": ("ignore", "null"),
    "weighting": ("equal", "1"),
    "pool": ("test",),
    "keep": ("nothing",),
    "store": ("cloud",),
    "plan": FLAG,
    "force": FLAG,
    "optim.lr": (*POSITIVE, "fast", "1,5"),
    "optim.momentum": ("-0.1", "1", "2", "nan", "x"),
    "optim.weight_decay": ("-1", "nan", "inf"),
    "optim.nesterov": FLAG[:2],
    "optim=adam optim.lr": ("nan", "inf", "fast"),
    "optim=adamw optim.betas": ("0.9", "[0.9]", "[a,b]"),
    "schedule=step schedule.every": COUNT[:3],
    "schedule=exponential schedule.gamma": ("0", "1.1", "nan"),
    "schedule=cosine schedule.floor": SHARE[:3],
    "algo.rs.alpha": SHARE,
    "algo.rs.mode": ("soft", "1"),
    "algo.rs.min_count": COUNT[:4],
    "algo.rs.during": ("local", "3", "[1]"),
    "algo.hpm.weight": SHARE[:3],
    "algo.hpm.temperature": POSITIVE[:4],
    "algo.hpm.transfer": ("copy",),
    "algo=scaffold algo.scaffold.server_lr": POSITIVE[:4],
    "algo=ditto algo.ditto.weight": ("-1", "nan"),
    "algo=fedmr algo.mr.lite": COUNT_OR_NULL[:3],
    "algo=fedrema algo.heads.delta": SHARE[:3],
    "algo=fedrs_noise algo.noise.sigma": POSITIVE[:3],
    "algo=fedgela algo.etf.energy": POSITIVE[:4],
    "data.size": ("0", "-8", "1000000000", "8.5", "big"),
    "data=synthetic data.samples": COUNT[:4],
    "data=synthetic data.noise": ("-1", "nan"),
    "data=cifar10 data.std": ("[0,1,1]", "[nan,1,1]", "1", "x"),
    "partition.min_classes": COUNT[:4],
    "partition.holdout": ("0", "1", "-1", "nan"),
    "partition.test": ("own",),
    "partition=dirichlet partition.beta": POSITIVE,
    "partition=dominant partition.iid": SHARE[:3],
    "partition=quantity partition.exponent": ("-1", "nan"),
    "partition=shards partition.per_client": COUNT[:3],
    "model.hidden": ("[0]", "[-1]", "16", "[1.5]", "[1000000000000]", "x", f"[{HUGE}]"),
    "model.bias": FLAG[:2],
    "model=wrn28_10 model.depth": ("0", "1000000"),
    "model=efficientnet_b0 model.dropout": ("1", "-1", "nan"),
    "executor=serial executor.threads": ("0", "-1", "100000", "x"),
    "executor=processes executor.workers": ("0", "-1", "100000", "1.5"),
    "executor=processes executor.per_device": ("0", "100000"),
    "executor=ray executor.gpus": ("-1", "nan"),
    "loop.accelerator": ("quantum", "3", "null"),
    "tracker=wandb tracker.wandb.mode": ("cloud",),
    "tracker=wandb tracker.wandb.project": ("''", "a/b", "what?", "x" * 129, "'a%b'"),
    "tracker=wandb tracker.wandb.tags": ("['']", "x", f"[{'y' * 65}]", "[1]"),
    "tracker=wandb tracker.wandb.entity": ("''", "a/b"),
    "name": ("../../x", "/x/y", "''", "a//b", "..", ".hidden", "a/../b", "3", "null", "'a\tb'", "'\x1b[3m'", "x" * 300),
    "out": ("''", "null", "'a\x07b'", "[x]"),
}  # fmt: skip

# ---------------------------------------------------------------- whole command lines, with words of the answer
COMMANDS = {
    "misspelt keys": [
        ("alog=map", "alog is not a setting", "'algo'"),
        ("roundz=3", "roundz is not a setting", "'rounds'"),
        ("cohort.client=3", "cohort.client is not a setting", "'cohort.clients'"),
        ("algo.rs.alhpa=1", "algo.rs.alhpa is not a setting", "'algo.rs.alpha'"),
        ("optmi.lr=1", "optmi.lr is not a setting", "'optim.lr'"),
        ("+optim.lrr=1", "optim.lrr is not a setting", "'lr'"),
        ("++rouns=1", "rouns is not a setting", "'rounds'"),
        ("+cohort.size=1", "cohort.size is not a setting", "Did you mean"),
        ("partition.beta=1", "partition.beta is a setting of partition=dirichlet"),
        ("nonsense=1", "nonsense is not a setting"),
        ("~nonsense", "nonsense", "does not exist"),
        ("+rounds=3", "rounds", "already"),
    ],
    "misspelt choices": [
        ("algo=mpa", "algo=mpa: there is no such choice", "'map'"),
        ("data=minst", "data=minst: there is no such choice", "'mnist'"),
        ("model=rsnet18", "model=rsnet18: there is no such choice", "'resnet18'"),
        ("partition=dirichelt", "partition=dirichelt: there is no such choice", "'dirichlet'"),
        ("optim=adm", "optim=adm: there is no such choice", "'adam'"),
        ("schedule=cos", "schedule=cos: there is no such choice", "'cosine'"),
        ("executor=proceses", "executor=proceses: there is no such choice", "'processes'"),
        ("tracker=tensorbord", "tracker=tensorbord: there is no such choice", "'tensorboard'"),
        ("tracker=[wandb,trackoi]", "tracker=trackoi: there is no such choice", "'trackio'"),
        ("experiment=nope", "experiment=nope: there is no such choice", "fedgela"),
        ("experiment=map/fmnist_mlp", "experiment=map/fmnist_mlp: there is no such choice", "'map/fmnist_mlpnet'"),
        ("sweep=nope", "sweep=nope: there is no such choice", "alpha"),
        ("hydra/launcher=nope", "hydra/launcher=nope: there is no such choice", "joblib"),
        ("algo=", "algo=: there is no such choice. Known: "),
        ("data=Mnist", "data=Mnist: there is no such choice", "'mnist'"),
    ],
    "not the grammar": [
        ("algo", "algo: ", "key=value"),
        ("=3", "=3: ", "key=value"),
        ("rounds==3", "rounds==3"),
        ("seed=[1", "seed=[1: ", "key=value"),
        ("seed={a", "seed={a: ", "key=value"),
        ("'name=\"a'", 'name="a: ', "quotes"),
        ("'data.root=~/x'", "data.root=~/x: this cannot be read. Write key=value"),
        ("a=b=c", "a=b=c: this cannot be read"),
        ("rounds=${nothing}", "rounds: ${nothing} names a setting that is not there"),
        ("rounds=${oc.env:NO_SUCH_VARIABLE}", "rounds: the environment variable NO_SUCH_VARIABLE is not set"),
        ("rounds=${nope:3}", "rounds: ${nope:…} is not something"),
        ("seed=1,2", "seed=1,2: several values are a sweep, which needs --multirun"),
        ("seed=range(3)", "seed=range(3): several values are a sweep, which needs --multirun"),
        ("+model=lenet", "+model=lenet: there is a model already. Leave out the +."),
        ("hydra.mode=X", "hydra.mode must be one of RUN, MULTIRUN, not X"),
        ("hydra.nosuch=1", "hydra.nosuch is not a setting of Hydra's"),
    ],
    "groups and lists": [
        ("algo=3", "algo=3: this is not the name of a file", "algo=map"),
        ("data=null", "data=null: this is not the name of a file"),
        ("algo=[map,fedrs]", "algo=[map,fedrs]: this is not the name of a file of algo"),
        ("cohort=[1,2]", "cohort must be a group of settings"),
        ("cohort=3", "cohort must be a group of settings"),
        ("local=x", "local must be a group of settings"),
        ("algo.rs=[1]", "algo.rs must be a group of settings"),
        ("algo.rs=3", "algo.rs must be a component"),
        ("~cohort", "cohort is missing"),
        ("~rounds", "rounds is missing"),
        ("~optim", "optim"),
        ("partition=dirichlet ~partition.beta", "partition.beta is missing"),
        ("'partition={beta: 1}'", "partition.beta"),
        ("rounds.x=1", "rounds"),
        ("'+algo.new={x: 1}'", "algo.new has no _target_"),
        ("+algo.new=1", "algo.new must be a component"),
    ],
    "targets": [
        ("model._target_=os.system", "model._target_: 'os.system' is neither in fedexp nor", "FEDEXP_ALLOW"),
        ("data._target_=subprocess.Popen", "data._target_: 'subprocess.Popen' is neither"),
        ("optim._target_=builtins.eval", "optim._target_: 'builtins.eval' is neither"),
        ("optim._target_=torch.optim.lr_scheduler.StepLR", "StepLR' is neither", "FEDEXP_ALLOW=torch"),
        ("optim._target_=torch.optim.Adm", "'torch.optim.Adm' is not there", "'Adam'"),
        ("optim._target_=torch.optim.swap_in_optimizer_params_and_state", "not what optim needs: it has no step"),
        ("optim._target_=torch.optim.Adam", "optim.momentum is not a setting of torch.optim.Adam"),
        ("loop._target_=torch.optim.SGD", "loop._target_: 'torch.optim.SGD' is neither"),
        ("algo.rs._target_=shutil.rmtree", "algo.rs._target_: 'shutil.rmtree' is neither"),
        ("tracker=wandb tracker.wandb._target_=nowhere.Thing", "tracker.wandb._target_: 'nowhere.Thing' is neither"),
        ("data._target_=fedexp.cli.main", "'fedexp.cli.main' belongs to fedexp, but is not in fedexp.data"),
        ("loop._target_=fedexp.client.optim.Sgd", "loop._target_: 'fedexp.client.optim.Sgd'", "it has no fit"),
        ("data._target_=fedexp.data.fetch.obtain", "is not what data needs: it has no load"),
        ("data._target_=fedexp.data.source.Source", "is only a description"),
        ("data._target_=fedexp.data.digits.Digts", "is not there", "'Digits'"),
        ("algo.rs._target_=fedexp.algos.fedrs.Nosuch", "is not there. Known: ", "RestrictedSoftmax"),
        ("data._target_=fedexp.data.nothing.Digits", "no module fedexp.data.nothing"),
        ("model._target_=fedexp.models.split.flat_size", "is not what model needs"),
        ("partition._target_=fedexp.partition.base.Partition", "is only a description"),
        ("executor._target_=fedexp.execute.processes.serve", "is not what executor needs"),
        ("executor._target_=fedexp.execute.pool.Pool", "is only a description"),
        ("model._target_=mlpnet", "must be module.name"),
        ("model._target_=3", "must be module.name"),
        ("model._target_=null", "must be module.name"),
        ("model._target_=[a]", "must be module.name"),
        ("model._target_=.mlpnet", "must be module.name"),
        ("model._target_=a..b", "must be module.name"),
        ("model._target_=fedexp.models.__init__.x", "must be module.name"),
        ("'model._target_=os.system(1)'", "model._target_=os.system(1): ", "key=value"),
        ("'model._target_=../x.y'", "must be module.name"),
        ("~model._target_", "model has no _target_"),
        ("+optim._partial_=true", "optim._partial_ is not a setting"),
        ("model._partial_=false", "model._partial_ must be true"),
        ("+model._args_=[1]", "model._args_ is not a setting"),
        ("+model._recursive_=true", "model._recursive_ is not a setting"),
        ("+data._convert_=all", "data._convert_ is not a setting"),
        ("+executor.blueprint=3", "executor.blueprint is not a setting"),
        ("+loop.number=3", "loop.number is not a setting"),
        ("+model.shape=[3]", "model.shape is not a setting"),
        ("hydra.launcher._target_=os.system", "hydra.launcher._target_: 'os.system' is not one of Hydra's own classes"),
        ("+hydra.callbacks.x._target_=os.system", "hydra.callbacks", "cannot be set"),
        ("hydra.searchpath=[/nope]", "hydra.searchpath: /nope is not a folder"),
        ("hydra.searchpath=[pkg://antigravity]", "hydra.searchpath: pkg://antigravity is not a folder"),
    ],
    "Hydra's own settings": [
        ("+hydra.job.env_set.LD_PRELOAD=/x.so", "hydra.job.env_set", "cannot be set"),
        ("hydra.output_subdir=zz", "hydra.output_subdir cannot be set"),
        ("hydra.run.dir=zz", "hydra.run.dir cannot be set"),
        ("'hydra={run: {dir: zz}}'", "hydra.run.dir cannot be set"),
        ("-m hydra.sweep.dir=zz seed=1,2", "hydra.sweep.dir cannot be set"),
        ("-m '+hydra={output_subdir: zz}'", "hydra"),
        ("hydra/job_logging=default", "hydra.job_logging", "cannot be set"),
        ("-m hydra/launcher=joblib hydra.launcher.temp_folder=zz", "hydra.launcher.temp_folder cannot be set"),
        ("experiment@hydra.job=map/fmnist_mlpnet", "experiment@hydra.job"),
    ],
    "what does not fit": [
        ("cohort.clients=1000000000", "1438 samples cannot give 1000000000 clients"),
        ("partition=classes partition.classes=99", "partition.classes=99 has to lie between 1 and 10"),
        ("partition=file", "partition.path"),
        ("partition=file partition.path=/nope.json", "/nope.json"),
        ("partition=natural", "partition"),
        ("partition=explicit", "partition"),
        ("model.hidden=[1000000,1000000]", "model: ", "Make it smaller"),
        ("model.hidden=[1000000000]", "model: ", "Make it smaller"),
        ("data=synthetic data.samples=1000000000", "Make it smaller"),
        ("data=synthetic data.classes=1000000000", "Make it smaller"),
        ("data=circles data.samples=1000000000", "Make it smaller"),
        ("data=sa_synthetic data.clients=1000000000", "Make it smaller"),
        ("data=sa_synthetic data.length=3", "data.length=3 has to be at least"),
        ("data=synthetic data.augment=[blur]", "blur"),
        ("model=lenet", "model: "),
        ("model=vgg11 data.size=8", "model: "),
        ("pool=all partition.test=mirror", "pool=all needs"),
        ("algo=fedgela model.hidden=[4]", "algo.etf.energy"),
        ("algo.hpm.during=[nowhere]", "algo.hpm.during must be"),
        ("algo.rs.during=[nowhere]", "nowhere"),
        ("loop.accelerator=cuda", "loop.accelerator=cuda is not on this machine"),
        ("loop.accelerator=mps", "loop.accelerator=mps is not on this machine"),
        ("tracker=wandb tracker.wandb.tags=[a,a]", "tracker.wandb.tags", "twice"),
        ("tracker=wandb tracker.wandb.figures=[curve]", "tracker.wandb.figures: there is no figure", "'curves'"),
        ("tracker=lightning tracker.lightning.logger._target_=os.system", "logger._target_: 'os.system' is neither"),
        ("tracker=lightning +tracker.lightning.logger.nam=x", "logger.nam is not a setting", "'name'"),
        ("tracker=wandb tracker.wandb.mode=online", "tracker.wandb.mode=online needs a W&B API key"),
    ],
    "sweeps": [
        ("-m algo.rs.alpha=0.5,2", "algo.rs.alpha must be between 0 and 1, not 2"),
        ("-m rounds=1,0", "rounds must be between 1 and"),
        ("-m optim.lr=0.1,nan", "optim.lr must be a finite number"),
        ("-m seed=range(0)", "seed=range(0) sweeps over nothing"),
        ("-m hydra/launcher=joblib hydra.launcher.n_jobs=x", "hydra.launcher.n_jobs must be a whole number, not x"),
        ("-m hydra.verbose=[a],[b]", "Hydra's own settings cannot be swept over"),
        ("-m seed=range(1,10,0)", "seed=range(1,10,0): a range needs", "step other than 0"),
        ("-m optim.lr=range(0,1,0.0)", "optim.lr=range(0,1,0.0): a range needs"),
        ("-m optim.lr=range(0,inf)", "optim.lr=range(0,inf): a range needs"),
        ("-m optim.lr=range(nan,1)", "optim.lr=range(nan,1): a range needs"),
        ("-m optim.lr=range(0,1,1e-320)", "100,000 are the most"),
        ("-m 'seed=shuffle(range(1000000000))'", "too many values; 100,000 are the most"),
        (f"-m seed=range({10**400})", "100,000 are the most"),
        ("-m plan=true,false", "plan must be the same for all jobs"),
        ("-m force=true,false seed=1,2", "force must be the same for all jobs"),
        ("-m hydra.sweeper.max_batch_size=0 seed=1,2", "hydra.sweeper.max_batch_size must be between 1 and"),
        ("-m hydra/launcher=joblib hydra.launcher.batch_size=x", "hydra.launcher.batch_size must be auto or"),
        ("-m hydra/launcher=joblib hydra.launcher.batch_size=0", "hydra.launcher.batch_size must be auto or"),
        ("-m hydra/launcher=joblib hydra.launcher.n_jobs=0", "hydra.launcher.n_jobs must be a whole number other than"),
        ("-m hydra/launcher=joblib hydra.launcher.timeout=-1", "hydra.launcher.timeout must be greater than 0"),
        ("-m hydra/launcher=joblib hydra.launcher.backend=nosuch", "hydra.launcher.backend cannot be set"),
        ("-m hydra/launcher=joblib hydra.launcher.prefer=threads", "hydra.launcher.prefer cannot be set"),
        ("-m hydra/launcher=submitit_local hydra.launcher.timeout_min=0", "hydra.launcher.timeout_min must be"),
        ("-m seed=range(100000000)", "seed=range(100000000) has too many values"),
        ("-m 'algo=glob(nosuch*)'", "algo=glob(nosuch*) sweeps over nothing"),
        ("-m algo=map,mpa", "algo=mpa: there is no such choice"),
        ("-m roundz=1,2", "roundz is not a setting"),
        ("-m seed=range(1000000000)", "100,000 are the most"),
        ("-m seed=range(1000) rounds=range(1,1000)", "100,000 are the most"),
        ("-m 'algo.rs.alpha=interval(0,1)'", "algo.rs.alpha=interval(0,1)", "sweeper plugin"),
        ("-m hydra.verbose=true,false", "hydra.verbose"),
        ("-m hydra/launcher=nope seed=1,2", "hydra/launcher=nope"),
        ("-m name=a,../b", "name must be the name of a folder"),
        ("-m executor.threads=1,100000", "executor.threads must be between 1 and"),
        ("-m loop.accelerator=cpu,cuda", "loop.accelerator=cuda is not on this machine"),
        ("-m tracker=wandb tracker.wandb.mode=offline,online", "tracker.wandb.mode=online needs"),
        ("-m model._target_=fedexp.models.mlp.mlpnet,os.system", "'os.system' is neither"),
        ("-m seed=1,x", "seed must be a whole number"),
        ("-m 'seed=choice()'", "seed=choice()"),
        ("sweep=alpha algo=fedavg", "algo.rs.alpha is a setting of"),
        ("sweep=seeds rounds=0", "rounds must be between 1 and"),
        ("hydra.mode=MULTIRUN rounds=0,1", "rounds must be between 1 and"),
    ],
    "options": [
        ("--config-dir /nope", "--config-dir /nope: there is no such folder"),
        ("-cd /nope rounds=1", "--config-dir /nope: there is no such folder"),
        ("--config-path /nope", "--config-path /nope: there is no such folder"),
        ("--config-path pkg://os", "--config-path pkg://os: there is no such folder"),
        ("--config-name confg", "--config-name confg: there is no confg.yaml", "'config'"),
        ("-cn ../x", "--config-name ../x"),
        ("--config-dir", "--config-dir", "--help"),
        ("--confg-dir x", "--confg-dir", "--help"),
        ("-z", "-z", "--help"),
        ("--cfg nothing", "--cfg", "job"),
        ("--cfg job -m seed=1,2", "exclude each other"),
        ("--cfg job roundz=1", "roundz is not a setting"),
        ("--info all algo=mpa", "algo=mpa: there is no such choice"),
        ("--help algo=mpa", "algo=mpa: there is no such choice"),
        ("--resolve", "--resolve needs --cfg"),
        ("--package nosuch", "--package needs --cfg"),
        ("--experimental-rerun x.pickle", "--experimental-rerun is not supported"),
    ],
}  # fmt: skip

# ---------------------------------------------------------------- folders of one's own: files, command, answer
OWN = {
    "algo/mine.yaml": "defaults: [fedrs, _self_]\nrs: {alpha: 0.3}\n",
    "algo/pulled.yaml": "prox:\n  _target_: theirs.Prox\n  mu: 0.1\n  during: [local]\n",
    "mine.yaml": "defaults: [config, _self_]\nrounds: 4\n",
}
ALGO = "algo/mine.yaml"
BROKEN = {"algo/broken.yaml": "rs: [1\n"}
LAUGHS = "a0: &a0 [x]\n" + "".join(f"a{i + 1}: &a{i + 1} [{', '.join([f'*a{i}'] * 9)}]\n" for i in range(9))
EVIL = "experiment/evil.yaml"
GLOBAL = "# @package _global_\n"
BASED = "defaults: [config, _self_]\n"
FOLDERS = [
    ({}, "algo=mein", "algo=mein: there is no such choice", "'mine'"),
    ({}, "algo=pulled algo.prox.mi=1", "algo.prox.mi is not a setting", "'algo.prox.mu'"),
    ({}, "algo=pulled algo.prox.mu=2", "algo.prox.mu must be between 0 and 1"),
    ({}, "algo=pulled algo.prox.mu=x", "algo.prox.mu must be a number"),
    ({}, "algo=pulled algo.prox.during=3", "algo.prox.during must be a list"),
    ({}, "-m algo=pulled,mine rounds=0,1", "rounds must be between 1 and"),
    ({}, "-m algo=pulled algo.prox.mu=0.5,2", "algo.prox.mu must be between 0 and 1"),
    ({}, "-m 'algo=glob(nope*)'", "sweeps over nothing"),
    ({}, "rounds=0", "rounds must be between 1 and"),
    ({}, "roundz=0", "roundz is not a setting", "'rounds'"),
    ({"config.yaml": "rounds: 3\n"}, "rounds=2", "config.yaml would not be read", "Rename it"),
    ({"algo/map.yaml": "{}\n"}, "rounds=2", "algo/map.yaml would not be read", "Rename it"),
    ({}, "-cn mien", "--config-name mien", "'mine'"),
    ({"mine.yaml": "rounds: 4\n"}, "-cn mine executor=serial", "executor is not a setting of mine.yaml"),
    ({}, "-cn mine rounds=0", "rounds must be between 1 and"),
    ({}, "-cn mine optim.lr=nan", "optim.lr must be a finite number"),
    ({ALGO: "rs: [1\n"}, "algo=mine", "algo/mine.yaml", "line 2", "not valid yaml"),
    ({ALGO: "\trs: 1\n"}, "algo=mine", "algo/mine.yaml", "not valid yaml"),
    ({ALGO: "rs: 1\nrs: 2\n"}, "algo=mine", "algo/mine.yaml", "not valid yaml"),
    ({ALGO: "a: &x [*x]\n"}, "algo=mine", "algo/mine.yaml"),
    ({ALGO: b"\xff\xfe\x00"}, "algo=mine", "algo/mine.yaml"),
    ({**BROKEN, ALGO: b"\xff\xfe\x00"}, "algo=mine", "algo/mine.yaml", "not valid yaml"),
    ({**BROKEN, ALGO: "rs: 1\nrs: 2\n"}, "algo=mine", "algo/mine.yaml, line 2,"),
    ({**BROKEN, ALGO: "rs: !!python/object/apply:os.system [ls]\n"}, "algo=mine", "algo/mine.yaml, line 1,"),
    ({**BROKEN, ALGO: "[a]: 1\n"}, "algo=mine", "algo/mine.yaml"),
    ({**BROKEN, ALGO: "? {a: b}\n: 1\n"}, "algo=mine", "algo/mine.yaml"),
    ({**BROKEN, ALGO: "a: &x [*x]\n"}, "algo=mine", "algo/mine.yaml", "*x contains itself"),
    ({**BROKEN, ALGO: "a: " + "[" * 3000 + "]" * 3000}, "algo=mine", "algo/mine.yaml", "nested more than 50 times"),
    ({**BROKEN, ALGO: LAUGHS}, "algo=mine", "algo/mine.yaml", "more than 100,000 values"),
    ({**BROKEN, ALGO: LAUGHS}, "algo.nosuch=1", "algo.nosuch is not a setting"),
    ({**BROKEN, "mine.yaml": LAUGHS}, "-cn mine", "mine.yaml", "more than 100,000 values"),
    ({ALGO: "- 1\n- 2\n"}, "algo=mine", "algo"),
    ({ALGO: "just text\n"}, "algo=mine", "algo"),
    ({ALGO: "defaults: {a: b}\n"}, "algo=mine", "defaults"),
    ({ALGO: "defaults: [nothing]\n"}, "algo=mine", "nothing"),
    ({ALGO: "defaults: [mine]\n"}, "algo=mine", "circle"),
    ({ALGO: "rs: {_target_: os.system, command: ls}\n"}, "algo=mine", "algo.rs._target_: 'os.system' is neither"),
    ({ALGO: "rs: !!python/object/apply:os.system [ls]\n"}, "algo=mine", "algo/mine.yaml", "not valid yaml"),
    ({ALGO: "rs: {_target_: broken.Prox}\n"}, "algo=mine", "broken.py is not valid Python"),
    ({ALGO: "rs: {_target_: theirs.Nothing}\n"}, "algo=mine", "theirs.Nothing' is not there"),
    ({ALGO: "rs: {_target_: theirs.NotAComponent}\n"}, "algo=mine", "is not what algo needs: it has no plan"),
    ({ALGO: "rs: {_target_: theirs.number}\n"}, "algo=mine", "neither a class nor a function"),
    ({ALGO: "rs: {_target_: theirs.Picky, mood: bad}\n"}, "algo=mine", "algo.rs", "the mood is bad"),
    ({ALGO: "rs: {_target_: raising.Prox}\n"}, "algo=mine", "raising.Prox cannot be imported", "ZeroDivision"),
    ({ALGO: "1: {_target_: theirs.Prox}\n2: 3\n"}, "algo=mine", "algo.2 must be a component"),
    ({"data/mine.yaml": "[1, 2]\n"}, "data=mine", "data"),
    ({"data/mine.yaml": "{}\n"}, "data=mine", "data", "_target_"),
    ({"data/mine.yaml": "_target_: theirs.Prox\n"}, "data=mine", "is not what data needs: it has no load"),
    ({"model/mine.yaml": "_target_: fedexp.models.mlp.mlpnet\nhiden: [3]\n"}, "model=mine", "model.hiden is not"),
    ({"optim/mine.yaml": "_target_: fedexp.client.optim.Sgd\nlr: .nan\n"}, "optim=mine", "optim.lr must be a finite"),
    ({"mine.yaml": BASED + "hydra: {callbacks: {x: {_target_: os.system}}}\n"}, "-cn mine", "hydra.callbacks cannot"),
    ({EVIL: GLOBAL + "hydra: {job: {env_set: {LD_PRELOAD: /x.so}}}\n"}, "experiment=evil", "hydra.job.env_set"),
    ({EVIL: GLOBAL + "hydra: {run: {dir: zz}}\n"}, "experiment=evil", "hydra.run.dir cannot be set"),
    ({EVIL: GLOBAL + "hydra: {output_subdir: zz}\n"}, "experiment=evil", "hydra.output_subdir cannot be set"),
    ({EVIL: GLOBAL + "hydra: {output_subdir: zz}\n"}, "-m experiment=evil,map/fmnist_mlpnet", "hydra.output_subdir"),
    ({EVIL: GLOBAL + "hydra: {job: {env_set: {A: b}}}\n"}, "-m experiment=map/fmnist_mlpnet,evil", "hydra.job.env_set"),
    ({"mine.yaml": BASED + "hydra: {sweep: {dir: zz}}\n"}, "-m -cn mine seed=1,2", "hydra.sweep.dir cannot be set"),
    ({"mine.yaml": BASED + "hydra: {searchpath: ['pkg://antigravity']}\n"}, "-cn mine", "hydra.searchpath"),
    ({"mine.yaml": BASED + "roundz: 4\n"}, "-cn mine", "roundz is not a setting", "'rounds'"),
    ({"mine.yaml": "rounds: 4\n"}, "-cn mine", "mine.yaml lacks the settings", "defaults: [config, _self_]"),
    ({"mine.yaml": "defaults: [confg]\n"}, "-cn mine", "confg"),
    ({"mine.yaml": "x: [\n"}, "-cn mine", "mine.yaml", "not valid yaml"),
]  # fmt: skip
MODULES = {
    "theirs.py": (
        "from dataclasses import dataclass\n"
        "from fedexp.core.component import Component\n"
        "from fedexp.core.ranges import Share\n"
        "number = 3\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Prox(Component):\n    mu: Share = 0.1\n"
        "@dataclass\nclass NotAComponent:\n    x: int = 1\n"
        "@dataclass(frozen=True, kw_only=True)\nclass Picky(Component):\n    mood: str = 'good'\n"
        "    def __post_init__(self):\n        raise ValueError('the mood is bad')\n"
    ),
    "broken.py": "def Prox(:\n",
    "raising.py": "1 / 0\nfrom theirs import Prox\n",
}


def rows() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Category, command, words of the answer."""
    for path, values in VALUES.items():
        *groups, key = path.split(" ")
        for value in values:
            yield f"values of {key}", shlex.join([*groups, f"{key}={value}"]), (key,)
    for category, commands in COMMANDS.items():
        for command, *words in commands:
            yield category, command, tuple(words)


ROWS = list(rows())


def test_the_table_is_long_and_has_no_row_twice():
    assert len({command for _, command, _ in ROWS}) == len(ROWS)
    assert len(ROWS) + len(FOLDERS) > 400


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("home")


@pytest.fixture
def answer(tmp_path, home, monkeypatch, capsys):
    """Runs a command line in this process; checks that it is refused well, and returns what is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(home))  # without a key for W&B
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WANDB_API_KEY", raising=False)

    def run(command: str) -> str:
        before = sorted(tmp_path.rglob("*"))
        quick = () if command.startswith("-") and not command.startswith("-m") else QUICK
        monkeypatch.setattr(sys, "argv", ["fedexp", *quick, *shlex.split(command)])
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        assert end.value.code == 2, err or out
        assert err.startswith("ConfigError: ")
        assert "Traceback" not in out + err
        assert re.sub(r"^reading \w+\n", "", out) == ""  # what only data can tell
        assert len(err.splitlines()) <= 4, err
        assert not re.search(r"full_key|object_type|Exception|expecting|Error merging", err)  # Hydra's own words
        assert all(c == "\n" or c.isprintable() for c in err)
        assert [p for p in sorted(tmp_path.rglob("*")) if p not in before and "__pycache__" not in p.parts] == []
        return err

    return run


@pytest.mark.parametrize(("command", "words"), [row[1:] for row in ROWS], ids=[f"{c}: {x[:60]}" for c, x, _ in ROWS])
def test_a_bad_command_is_refused(answer, command, words):
    said = answer(command)
    for word in words:
        assert word in said


@pytest.mark.parametrize(("files", "command", "words"), [(f, c, w) for f, c, *w in FOLDERS])
def test_a_bad_folder_is_refused(answer, tmp_path, files, command, words):
    write(tmp_path / "own", {**OWN, **files})
    write(tmp_path, MODULES)
    said = answer(f"-cd own {command}")
    for word in words:
        assert word in said


def test_a_link_to_nothing_is_no_choice(answer, tmp_path):
    write(tmp_path / "own", OWN)
    (tmp_path / "own" / "algo" / "dangling.yaml").symlink_to(tmp_path / "nothing")
    assert "'dangling'" not in answer("-cd own algo=dangling")


@pytest.fixture(autouse=True)
def forgotten_modules():
    """Each row has files of its own."""
    yield
    for name in MODULES:
        sys.modules.pop(name.removesuffix(".py"), None)


def write(folder: Path, files: dict[str, str | bytes]) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
