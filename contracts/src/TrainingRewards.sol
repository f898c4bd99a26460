// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {EIP712} from "@openzeppelin/contracts/utils/cryptography/EIP712.sol";
import {ECDSA} from "@openzeppelin/contracts/utils/cryptography/ECDSA.sol";
import {SafeCast} from "@openzeppelin/contracts/utils/math/SafeCast.sol";
import {JobEscrow} from "./JobEscrow.sol";
import {EpochRoots, IStakes} from "./EpochRoots.sol";

/// Pays nodes for training, in one of three ways that a job chooses when it is created: units counted on chain, a Merkle
/// root for every epoch, or vouchers that the coordinator signs. A job has one way only, so that nothing is paid twice
/// and no voucher goes around a dispute. Nobody owns this contract; see `JobEscrow` and `EpochRoots`.
contract TrainingRewards is EpochRoots {
    using SafeCast for uint256;

    struct Metrics {
        uint128 units;
        uint64 contributions;
        uint64 lastEpoch;
    }

    struct Voucher {
        address node;
        uint128 cumulative;
        uint64 epoch;
        bytes signature;
    }

    bytes32 public constant VOUCHER_TYPEHASH =
        keccak256("Voucher(uint256 jobId,address node,uint128 cumulative,uint64 epoch)");

    mapping(uint256 => mapping(address => Metrics)) private _metrics;
    mapping(uint256 => uint64) public batches; // by job, how many submissions of contributions there were

    event ContributionRecorded(uint256 indexed jobId, address indexed node, uint64 indexed epoch, uint96 units);
    event ContributionsRecorded(
        uint256 indexed jobId, uint64 indexed epoch, uint64 batch, uint256 count, uint256 units, bytes32 dataHash
    );
    event VoucherRedeemed(uint256 indexed jobId, address indexed node, uint64 epoch, uint256 cumulative);

    error WrongBatch(uint64 batch, uint64 expected);
    error EpochGoesBack(uint64 epoch, uint64 last);
    error BadSignature(address signer);

    constructor(IStakes stakes_) EpochRoots(stakes_) EIP712("ShoalTrainingRewards", "1") {}

    // --- units on chain --------------------------------------------------------------------------------------------

    /// One node's work. `batch` is the number of submissions before this one, so a repeated one is refused.
    function submitContribution(uint256 jobId, uint64 epoch, uint64 batch, address node, uint96 units)
        external
        onlyCoordinator(jobId)
    {
        Job storage job = _next(jobId, epoch, batch);
        _record(jobId, epoch, node, units);
        _commit(job, uint256(job.committed) + uint256(units) * job.price);
        emit ContributionRecorded(jobId, node, epoch, units);
    }

    /// Many nodes' work: each item is an address (160 bits) and units (96 bits).
    function submitContributions(uint256 jobId, uint64 epoch, uint64 batch, bytes32[] calldata packed)
        external
        onlyCoordinator(jobId)
    {
        Job storage job = _next(jobId, epoch, batch);
        uint256 sum = 0;
        for (uint256 i = 0; i < packed.length; ++i) {
            uint256 item = uint256(packed[i]);
            uint96 units = uint96(item);
            _record(jobId, epoch, address(uint160(item >> 96)), units);
            sum += units;
        }
        _commit(job, uint256(job.committed) + sum * job.price);
        emit ContributionsRecorded(jobId, epoch, batch, packed.length, sum, keccak256(abi.encodePacked(packed)));
    }

    function _next(uint256 jobId, uint64 epoch, uint64 batch) private returns (Job storage job) {
        job = _openJob(jobId);
        if (job.mode != Mode.Units) revert WrongMode(job.mode);
        if (batch != batches[jobId]) revert WrongBatch(batch, batches[jobId]);
        if (epoch < job.epoch) revert EpochGoesBack(epoch, job.epoch);
        batches[jobId] = batch + 1;
        if (epoch != job.epoch) job.epoch = epoch;
    }

    function _record(uint256 jobId, uint64 epoch, address node, uint96 units) private {
        Metrics memory one = _metrics[jobId][node];
        one.units = (uint256(one.units) + units).toUint128();
        one.contributions += 1;
        one.lastEpoch = epoch;
        _metrics[jobId][node] = one;
    }

    /// What a node has earned by units and was not paid yet.
    function calculateRewards(uint256 jobId, address node) public view returns (uint256) {
        return uint256(_metrics[jobId][node].units) * _jobs[jobId].price - paidTo[jobId][node];
    }

    /// Pay these nodes what their units have earned. Anyone may send this.
    function distributePayments(uint256 jobId, address[] calldata nodes) external nonReentrant {
        Job storage job = _ofMode(jobId, Mode.Units);
        for (uint256 i = 0; i < nodes.length; ++i) {
            uint256 due = calculateRewards(jobId, nodes[i]);
            if (due != 0) _payUpTo(jobId, job, nodes[i], paidTo[jobId][nodes[i]] + due, job.committed);
        }
    }

    // --- vouchers --------------------------------------------------------------------------------------------------

    /// Pay a node up to what the coordinator signed. Anyone may send this; the money goes to the node.
    function redeemVoucher(uint256 jobId, Voucher calldata voucher) external nonReentrant {
        _redeem(jobId, _ofMode(jobId, Mode.Vouchers), voucher);
    }

    function redeemVouchers(uint256 jobId, Voucher[] calldata vouchers) external nonReentrant {
        Job storage job = _ofMode(jobId, Mode.Vouchers);
        for (uint256 i = 0; i < vouchers.length; ++i) {
            if (vouchers[i].cumulative > paidTo[jobId][vouchers[i].node]) _redeem(jobId, job, vouchers[i]);
        }
    }

    function _redeem(uint256 jobId, Job storage job, Voucher calldata voucher) private {
        bytes32 digest = _hashTypedDataV4(
            keccak256(abi.encode(VOUCHER_TYPEHASH, jobId, voucher.node, voucher.cumulative, voucher.epoch))
        );
        address signer = ECDSA.recoverCalldata(digest, voucher.signature);
        if (signer != job.coordinator) revert BadSignature(signer);
        uint256 before = paidTo[jobId][voucher.node];
        if (voucher.cumulative <= before) revert NothingDue(voucher.node);
        // Nothing is committed before it is redeemed; the cap by time bounds what a stolen key can take.
        _commit(job, uint256(job.committed) + voucher.cumulative - before);
        emit VoucherRedeemed(jobId, voucher.node, voucher.epoch, voucher.cumulative);
        _payUpTo(jobId, job, voucher.node, voucher.cumulative, job.committed);
    }

    // --- views -----------------------------------------------------------------------------------------------------

    function getNodeMetrics(uint256 jobId, address node)
        external
        view
        returns (uint128 units, uint64 contributions, uint64 lastEpoch, uint256 paid)
    {
        Metrics storage one = _metrics[jobId][node];
        return (one.units, one.contributions, one.lastEpoch, paidTo[jobId][node]);
    }

    function domainSeparator() external view returns (bytes32) {
        return _domainSeparatorV4();
    }
}
