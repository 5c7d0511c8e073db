import pytest

from nanode.training import Costs, Flow, Metrics, OptimizerConfig, RunRecord, Times, TrainConfig


@pytest.fixture
def make():
    """A record with the settings that matter to a report, all else plain."""

    def make(
        model="t-nanode-10",
        accuracy=0.5,
        seed=0,
        data="cifar10",
        status="finished",
        lr=0.1,
        field="TimeVarying(Trigonometric(order=10))",
        scale=1.0,
        gradient="Backprop()",
        speed=16_000.0,
        share=None,
        commit="0123456789abcdef",
        modified=False,
        **config,
    ):
        config = TrainConfig(
            data=data, model=model, seed=seed, optimizer=OptimizerConfig(lr=lr), **config
        )
        return RunRecord(
            config=config,
            seed=seed,
            status=status,
            started="2026-01-01T00:00:00+00:00",
            message="it diverged" if status == "failed" else None,
            metrics=Metrics(validation_accuracy=0.1, test_accuracy=accuracy)
            if status == "finished"
            else None,
            commit=commit,
            modified=modified,
            hardware={"name": "Some GPU"},
            versions={"torch": "2.11.0"},
            times=Times(images_per_second=speed),
            flows=(
                Flow(
                    name="stages.0.0",
                    field=field,
                    steps="10",
                    solver="Euler()",
                    gradient=gradient,
                    scale=scale,
                    augment=0,
                ),
            ),
            costs=Costs(
                batch_size=512,
                precision="bf16-mixed",
                parameters=1_490_000,
                parameter_bytes=5_960_000,
                flow_parameter_bytes=5_849_088,
                flow_activation_bytes=7_300_000_000,
                flow_table_bytes=0,
                flow_peak_bytes=0,
                saved_bytes=0,
                flow_time_share=share,
                flow_seconds=None if share is None else 0.025,
            ),
        )

    return make
