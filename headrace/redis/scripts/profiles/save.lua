-- @include keep_profile
-- Save how a profile has ended. KEYS: none.
-- ARGV: 1 id, 2 the request (JSON) of an automatic profile ('': it was requested), 3 `model@version`, 4 its error, 5 TTL
--       in s, 6 how many are kept, then the name and the bytes of each file.
-- Returns {1}; {0} if a requested profile is gone or has ended.
local PROFILE = keys.profile .. ARGV[1]
if ARGV[2] == '' then
  if call('HGET', PROFILE, 'state') ~= 'running' then return {0} end
else
  call('HSET', PROFILE, 'request', ARGV[2], 'of', ARGV[3], 'at', NOW, 'until', NOW)
end
call('HSET', PROFILE, 'state', ARGV[4] == '' and 'done' or 'failed', 'error', ARGV[4])
for i = 7, #ARGV, 2 do call('HSET', PROFILE, 'file:' .. ARGV[i], ARGV[i + 1]) end
keep_profile(ARGV[1], ARGV[5], ARGV[6])
return {1}
