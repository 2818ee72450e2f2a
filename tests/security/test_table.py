"""The table of ACLs: what each part needs, and no more."""

from fleet.config.acls import OFFSETS, TABLE, allows, grants, needed_grants
from fleet.config.spec import GroupSpec


def test_modes_include_each_other():
    """Who may act may plan, who may plan may observe."""
    assert set(TABLE["observe"]) < set(TABLE["plan"]) < set(TABLE["act"])


def test_only_what_changes_nothing_is_needed_to_look():
    """Observing, counting and planning describe and read, and of topics read only the records'."""
    for part in ("observe", "history", "plan"):
        for grant in grants(part, groups=["g"], topics=["t"]):
            records = (grant.operation, grant.name) == ("Read", OFFSETS)
            assert records or grant.operation in {"Describe", "DescribeConfigs"}


def test_one_login_for_manager_and_local_workers():
    """Workers of this machine log in as the manager; what is optional is not asked for."""
    worker = {"entrypoint": "m:f", "protocol": "classic"}
    spec = GroupSpec.model_validate({"group": "g", "topics": ["t", "^x.*"], "worker": worker})
    assert {str(each) for each in needed_grants(spec, "plan")} == {
        "Describe on group g",
        "Describe on topic t",
    }
    assert "Read on topic t" in {str(each) for each in needed_grants(spec, "act")}
    assert "AlterConfigs on group g" not in {str(each) for each in needed_grants(spec, "act")}


def test_operations_imply_others():
    """As Kafka's authorizer has it."""
    assert allows({"Read"}, "Describe")
    assert allows({"AlterConfigs"}, "DescribeConfigs")
    assert not allows({"Describe"}, "Read")
