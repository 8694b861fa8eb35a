-- @include finish, remove_queued
-- Cancel jobs in any state, and return what that did. KEYS: none.
-- ARGV: 1 queue prefix, 2 seconds for which ids without a record are remembered (0: not at all), so that a later message
--       of theirs is not run. After the seconds, separated by spaces, may follow id and token of a job on whose behalf
--       they are cancelled: nothing is done if that job has another token by now or has ended.
--       Then ids, each with a space and an API key after it if only a job of that key is known (-: of no key).
-- Returns per id: unknown, removed (it will not run), asked (its worker is notified) or ended; or false (see 2).
local REMEMBERED_MAX = 50000
local notices, unknown = {}, {}

local function cancel(id, key)
  local state, model, step, ttl, waiter, ticket, owner, token, sending, of =
    unpack(read(id, 's', 'm', 'p', 'l', 'w', 'n', 'o', 't', 'fw', 'ky'))
  if key and key ~= (of or '-') then return 'unknown' end
  if not state then
    unknown[#unknown + 1] = id
    return 'unknown'
  end
  -- Its callbacks are being sent.
  if state == 'r' and sending and sending == token then return 'ended' end
  if state == 'r' then
    redis.call('HDEL', JOB .. id, 'cr')
    redis.call('HSET', JOB .. id, 'cr', '1')
    if model and owner and token then
      local t = notices[owner] or {}
      notices[owner] = t
      t[#t + 1], t[#t + 2], t[#t + 3] = model, id, token
    end
    return 'asked'
  end
  if not waits(state) then return 'ended' end
  local queue = ARGV[1] .. model
  finish_cancelled(id, ttl, waiter, queue, remove_queued(queue, id, state, step, ticket))
  return 'removed'
end

local remember_s, parent, fence = string.match(ARGV[2], '^(%S+) ?(%S*) ?(%S*)$')
if parent ~= '' then
  local token, state = unpack(read(parent, 't', 's'))
  if token ~= fence or state ~= 'r' then return false end
end
redis.call('ZCARD', REVOKED_IDS)
local asked = {}
for i = 3, #ARGV do
  local id, key = string.match(ARGV[i], '^(%S+) (%S+)$')
  asked[i - 2] = {id or ARGV[i], key}
  local state, model = unpack(read(asked[i - 2][1], 's', 'm'))
  if waits(state) then check_waiting(ARGV[1] .. model) end
end
local answer = {}
for n, a in ipairs(asked) do answer[n] = cancel(a[1], a[2]) end
for owner, jobs in pairs(notices) do redis.call('PUBLISH', CANCELLED .. owner, cmsgpack.pack(jobs)) end
if remember_s ~= '0' and #unknown > 0 then
  begin_with_removal(REVOKED_IDS)
  for _, id in ipairs(unknown) do redis.call('ZADD', REVOKED_IDS, whole(NOW_US + tonumber(remember_s) * 1e6), id) end
  redis.call('EXPIRE', REVOKED_IDS, remember_s)
  redis.call('ZREMRANGEBYSCORE', REVOKED_IDS, '-inf', NOW)
  redis.call('ZREMRANGEBYRANK', REVOKED_IDS, 0, -(REMEMBERED_MAX + 1))
end
compact()
return answer
