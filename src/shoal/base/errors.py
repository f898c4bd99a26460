"""Every error a person can meet: a stable code, what happened, and what to do next.

    ShoalError
      code        stable, e.g. SH-JOIN-02; `docs/errors.md` explains each
      cause       what happened, with the values found
      next_step   what the person can do about it

In flows what went wrong; out flows text for people and a code for tools. A peer's misbehaviour is not
an error but data (`Refuse`, a rejection in a seal); these errors are for the person at this machine.
"""

from __future__ import annotations


class ShoalError(Exception):
    """A failure with a stable code, a cause and a next step."""

    def __init__(self, code: str, cause: str, next_step: str) -> None:
        if code not in CODES:
            raise KeyError(f"unregistered error code {code}")
        super().__init__(f"{code}: {cause} ({next_step})")
        self.code = code
        self.cause = cause
        self.next_step = next_step


class ChannelClosed(Exception):
    """The other side of a channel is gone, or a request to a peer failed or timed out."""


# One line each: the code's meaning, independent of a particular case. `docs/errors.md` is made from this.
CODES: dict[str, str] = {
    "SH-CLI-01": "the command line is not understood",
    "SH-RECIPE-01": "the recipe cannot be read as YAML",
    "SH-RECIPE-02": "a recipe field is missing, unknown or out of range",
    "SH-RECIPE-03": "the recipe's pieces cannot be combined soundly",
    "SH-DATA-01": "the dataset is unknown or cannot be read",
    "SH-DATA-02": "the dataset is empty or too small for one batch",
    "SH-DATA-03": "the dataset's content does not have the expected form",
    "SH-MODEL-01": "the model cannot be built from the recipe",
    "SH-TRAIN-01": "a training step gave a loss or gradient that is not a finite number",
    "SH-CODEC-01": "a tensor cannot be encoded",
    "SH-JOIN-01": "the ticket cannot be read",
    "SH-JOIN-02": "the join token is wrong",
    "SH-JOIN-03": "the join token has expired",
    "SH-JOIN-04": "the ticket names a run this coordinator does not have",
    "SH-JOIN-05": "the coordinator cannot be reached",
    "SH-JOIN-06": "the other side speaks another version of the protocol",
    "SH-JOIN-07": "the other side is not who the ticket says",
    "SH-JOIN-08": "the run has ended",
    "SH-JOIN-09": "the recipe needs code from the organiser, and this volunteer has not allowed it",
    "SH-JOIN-10": "the volunteer's limits leave no room to take part",
    "SH-JOIN-11": "the run takes no more nodes",
    "SH-JOIN-12": "the run is trained by regions or masked groups, and a single node joins one of them",
    "SH-JOIN-13": "this node is banned from the run",
    "SH-JOIN-14": "the run takes only nodes on its list",
    "SH-JOIN-15": "joining the run takes a proof of work",
    "SH-JOIN-16": "the organiser's own check does not let this node in",
    "SH-KEY-01": "the key file is unreadable or open to others",
    "SH-KEY-02": "the run belongs to a coordinator with another key",
    "SH-KEY-03": "another key speaks for this node",
    "SH-KEY-04": "the node's keys were revoked",
    "SH-KEY-05": "the run asks for hybrid signatures",
    "SH-LEAD-01": "another coordinator has taken over",
    "SH-LEAD-02": "a run's coordinators do not make a majority",
    "SH-LEAD-03": "this coordinator stands by, and another leads",
    "SH-LOG-01": "an entry of the log was altered, is missing or out of order",
    "SH-LOG-02": "the coordinator signed two different entries for one position",
    "SH-LOG-03": "the log's head is not what the writer expected",
    "SH-LOG-04": "the log store cannot be opened",
    "SH-LOG-05": "replaying the log does not give the attested state",
    "SH-BLOB-01": "a blob is missing and no peer has it",
    "SH-BLOB-02": "a blob on disk is corrupt",
    "SH-CKPT-01": "no such checkpoint",
    "SH-CKPT-02": "a checkpoint's state is not stored and cannot be rebuilt",
    "SH-CKPT-03": "a checkpoint does not fit the model or the data of the recipe",
    "SH-CKPT-04": "a checkpoint lacks a quorum of signatures",
    "SH-CKPT-05": "what is imported is not the checkpoint that it says it is",
    "SH-CKPT-06": "a place for checkpoints cannot be reached, or its package is not installed",
    "SH-CKPT-07": "stored files are damaged",
    "SH-DISK-01": "the disk is full",
    "SH-DISK-02": "a file cannot be read or written",
    "SH-SERVE-01": "the port is taken",
    "SH-SERVE-02": "the address is not one of this machine's",
    "SH-SERVE-03": "another coordinator works in this home",
    "SH-API-01": "the request lacks a valid bearer token",
    "SH-API-02": "no such run",
    "SH-API-03": "the request is not valid",
    "SH-API-04": "the coordinator's HTTP address does not answer",
    "SH-API-05": "the token's scope does not allow this",
    "SH-API-06": "the coordinator failed on this request",
    "SH-WIRE-01": "a frame is too large, garbled or of an unknown type",
    "SH-POOL-01": "the pool takes no more machines",
    "SH-POOL-02": "the offer to the pool is not to be believed",
    "SH-POOL-03": "no hub can be where this machine says",
    "SH-RUN-01": "the run is not in a state that allows this",
    "SH-CREDIT-01": "the stored ledger or a receipt is not what the log gives",
    "SH-CREDIT-02": "no such node has a part in the run",
    "SH-CHAIN-01": "the packages for settling on a chain are not installed",
    "SH-CHAIN-02": "the key for the chain cannot be read",
    "SH-CHAIN-03": "an address on the chain is malformed",
    "SH-CHAIN-04": "no RPC of the chain answers",
    "SH-CHAIN-05": "the RPC is of another chain than the configuration says",
    "SH-CHAIN-06": "the local chain cannot be started",
    "SH-CHAIN-07": "there is no such contract at the address",
    "SH-CHAIN-08": "the wallet has too little of the chain's coin for the fees",
    "SH-CHAIN-09": "the job on the chain takes no more credit",
    "SH-CHAIN-10": "the chain refused a transaction",
    "SH-CHAIN-11": "the chain's configuration is missing or wrong",
    "SH-DEVICE-01": "the requested device is not usable",
    "SH-PRIVACY-01": "the privacy that the recipe asks for cannot be had on its data",
    "SH-PRIVACY-02": "the package for counting privacy is not installed",
    "SH-AUDIT-01": "no such case of an audit",
    "SH-BENCH-01": "a benchmark cannot run here",
    "SH-TRACE-01": "figures or traces cannot be written where they are wanted",
    "SH-ATTACK-01": "no such attack",
    "SH-ATTACK-02": "an attack of one's own failed, or gave back what is no update or batch",
    "SH-LAB-01": "the fleet file, or a trace it names, cannot be read",
    "SH-LAB-02": "a field of the fleet file is missing, unknown, out of range or at odds with another",
    "SH-LAB-03": "this machine does not let a lab be made",
    "SH-LAB-04": "a link emulator cannot be started",
    "SH-LAB-05": "the congestion control cannot be had",
    "SH-LAB-06": "a program cannot be started in the lab",
}
