-- Take a requested profile for one worker. KEYS: none. ARGV: 1 id, 2 owner, 3 for how many us it can be taken.
-- Returns {the request (JSON)}; {} if it is taken already, or too old.
local PROFILE = keys.profile .. ARGV[1]
local found = call('HMGET', PROFILE, 'state', 'owner', 'at', 'request')
if not found[1] or tonumber(found[3]) + tonumber(ARGV[3]) <= NOW_US then return {} end
if found[1] ~= 'requested' and not (found[1] == 'running' and found[2] == ARGV[2]) then return {} end
call('HSET', PROFILE, 'state', 'running', 'owner', ARGV[2])
return {found[4]}
