// SPDX-License-Identifier: Apache-2.0
pragma solidity ^0.8.28;

import {ERC20} from "@openzeppelin/contracts/token/ERC20/ERC20.sol";

/// A token that keeps a hundredth of some transfers, and refuses some receivers: what escrows must live with.
contract TestToken is ERC20 {
    uint256 public immutable fee;
    mapping(address => bool) public refused;

    constructor(uint256 fee_) ERC20("Test", "TEST") {
        fee = fee_;
        _mint(msg.sender, 1e36);
    }

    function refuse(address who) external {
        refused[who] = true;
    }

    function _update(address from, address to, uint256 value) internal override {
        require(!refused[to], "refused");
        uint256 kept = from == address(0) ? 0 : value * fee / 100;
        super._update(from, to, value - kept);
        if (kept != 0) super._update(from, address(0xdead), kept);
    }
}
