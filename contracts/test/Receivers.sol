// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

/// A receiver that refuses money until it is told otherwise, and can call anything.
contract Stubborn {
    bool public willing;

    function agree() external {
        willing = true;
    }

    function act(address target, bytes calldata data) external payable returns (bytes memory) {
        (bool done, bytes memory answer) = target.call{value: msg.value}(data);
        require(done, "failed");
        return answer;
    }

    receive() external payable {
        require(willing, "refused");
    }
}

/// A receiver that, whenever it is paid, calls back with what it was told to.
contract Reenterer {
    address private _target;
    bytes private _data;
    uint256 public tried;
    bool public succeeded;

    function arm(address target, bytes calldata data) external {
        (_target, _data) = (target, data);
    }

    function act(address target, bytes calldata data) external payable {
        (bool done,) = target.call{value: msg.value}(data);
        require(done, "failed");
    }

    receive() external payable {
        tried += 1;
        (bool done,) = _target.call(_data);
        if (done) succeeded = true;
    }
}
